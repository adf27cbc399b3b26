-- Tasks that pass less often, or run more than 5 % slower, than in the nearest earlier round of the same stage.
with per_task as (
    select stage, run, round, task, count(*) as episodes, avg(correct::int) as pass_rate,
           exp(avg(ln(speedup_eager_median)) filter (where correct)) as speedup
    from scored group by stage, run, round, task
),
pairs as (
    select stage, round, (select max(b.round) from per_task b where b.stage = a.stage and b.round < a.round) as earlier
    from (select distinct stage, round from per_task) a
)
select
    now.stage, was.run as earlier_run, now.run as later_run, now.task, array_to_string(t.operators, ' ') as operators,
    was.pass_rate as pass_before, now.pass_rate as pass_after,
    was.speedup as speedup_before, now.speedup as speedup_after
from per_task now
join pairs p on p.stage = now.stage and p.round = now.round
join per_task was on was.stage = now.stage and was.round = p.earlier and was.task = now.task
left join tasks t on t.id = now.task
where now.pass_rate < was.pass_rate or now.speedup < 0.95 * was.speedup
order by now.pass_rate - was.pass_rate, now.speedup / was.speedup nulls first, now.task, was.run, now.run
