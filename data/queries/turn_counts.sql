-- Turns an episode, how episodes stop and when the first correct verdict came, by run.
select
    run, stop, count(*) as episodes,
    avg(n_turns) as mean_turns, median(n_turns) as median_turns, max(n_turns) as most_turns,
    avg(first_correct_turn) as mean_first_correct,
    avg((first_correct_turn is not null)::int) as ever_correct
from episodes
group by run, stop
order by run, episodes desc
