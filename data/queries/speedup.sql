-- fast_p (share of all scored episodes correct and more than p times as fast, median) and geometric means over the correct ones.
select
    run, checkpoint, round, count(*) as episodes, count(*) filter (where correct) as correct,
    avg((correct and coalesce(speedup_eager_median > 1, false))::int) as eager_fast_1,
    avg((correct and coalesce(speedup_eager_median > 1.05, false))::int) as eager_fast_1_05,
    avg((correct and coalesce(speedup_eager_median > 2, false))::int) as eager_fast_2,
    exp(avg(ln(speedup_eager_median)) filter (where correct)) as eager_geomean,
    avg((correct and coalesce(speedup_compile_median > 1, false))::int) as compile_fast_1,
    avg((correct and coalesce(speedup_compile_median > 1.05, false))::int) as compile_fast_1_05,
    avg((correct and coalesce(speedup_compile_median > 2, false))::int) as compile_fast_2,
    exp(avg(ln(speedup_compile_median)) filter (where correct)) as compile_geomean
from scored
group by run, checkpoint, round
order by round, run
