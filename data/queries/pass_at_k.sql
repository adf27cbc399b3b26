-- Unbiased pass@k: the chance that at least one of k samples of a task is correct, mean over tasks with at least k samples.
with per_task as (
    select run, checkpoint, round, task, count(*) as n, count(*) filter (where correct) as c
    from scored group by run, checkpoint, round, task
)
select run, checkpoint, round, k, count(*) as tasks, avg(pass_at_k(n, c, k)) as pass_at_k
from per_task, (select unnest([1, 2, 4, 8, 16]) as k)
where n >= k
group by run, checkpoint, round, k
order by round, run, k
