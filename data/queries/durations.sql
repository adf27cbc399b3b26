-- Seconds by run: generating, tools and judging, in all and a turn, and the slowest turn.
select
    run, count(*) as turns,
    sum(generate_s) as generate_s, sum(tools_s) as tools_s, sum(judge_s) as judge_s,
    median(generate_s) as generate_a_turn, median(tools_s) as tools_a_turn, median(judge_s) as judge_a_turn,
    max(coalesce(generate_s, 0) + coalesce(tools_s, 0) + coalesce(judge_s, 0)) as slowest_turn
from turns
group by run
order by run
