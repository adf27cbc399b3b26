-- Share of episodes whose scored verdict is correct, faster than eager and than torch.compile (low end above 1), by run and checkpoint.
select
    e.run, e.stage, e.checkpoint, e.round,
    count(*) as episodes,
    count(distinct e.task) as tasks,
    any_value(x.excluded) as excluded,
    avg(e.correct::int) as pass_rate,
    avg(coalesce(e.correct and e.speedup_eager_low > 1, false)::int) as faster_eager,
    avg(coalesce(e.correct and e.speedup_compile_low > 1, false)::int) as faster_compile
from scored e
join (
    select run, stage, checkpoint, round,
           count(*) filter (where stop = 'infra_error' or coalesce(status, '') = 'task_invalid') as excluded
    from episodes group by all
) x using (run, stage, checkpoint, round)
group by e.run, e.stage, e.checkpoint, e.round
order by e.round, e.run
