-- Mean reward and how often each milestone was reached, by stage and round.
select
    stage, round, run, count(*) as episodes, count(reward) as rewarded,
    avg(reward) as mean_reward,
    stddev_samp(reward) as spread,
    avg((reward < 0)::int) as wrong,
    avg((reward = 0)::int) as stress_only,
    avg((reward > 0 and reward < 2)::int) as right_but_slow,
    avg((reward >= 2 and reward < 3)::int) as beats_eager,
    avg((reward >= 3)::int) as beats_both
from episodes
group by stage, round, run
order by stage, round, run
