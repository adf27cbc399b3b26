-- Candidates rejected for a broken rule, and correct ones that carry a flag, by run.
select run, kind, status, rule, null as flag, count(*) as times, count(distinct candidate_id) as candidates,
       min(trajectory) as example, min(split_part(reason, chr(10), 1)) as reason
from verdicts where status = 'rejected'
group by run, kind, status, rule
union all by name
select run, kind, status, null as rule, flag, count(*) as times, count(distinct candidate_id) as candidates,
       min(trajectory) as example, null as reason
from (select *, unnest(flags) as flag from verdicts where status = 'correct')
group by run, kind, status, flag
order by status desc, times desc, run, kind
