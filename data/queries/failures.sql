-- What went wrong: status and first line of the reason with its numbers left out, most frequent first.
select
    run, kind, status, rule,
    regexp_replace(split_part(reason, chr(10), 1), '[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?', '#', 'g') as reason,
    count(*) as times,
    min(trajectory) as example
from verdicts
where not correct
group by all
order by times desc, run, kind, status, reason
