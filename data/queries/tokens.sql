-- Tokens by run: totals, means an episode, the longest episode, and the share of turns cut off at the token limit.
select
    e.run, count(*) as episodes,
    sum(n_prompt) as prompt_tokens, sum(n_action) as action_tokens, sum(n_obs) as observation_tokens,
    avg(n_action) as action_an_episode,
    max(n_prompt + n_action + n_obs) as longest,
    any_value(t.cut_off) as cut_off
from episodes e
left join (select run, avg((finish_reason = 'length')::int) as cut_off from turns group by run) t using (run)
group by e.run
order by e.run
