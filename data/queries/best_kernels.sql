-- The fastest correct kernel of every task, by its scored verdict, with its text.
with best as (
    select * from scored
    where correct and speedup_eager_median is not null
    qualify row_number() over (partition by task order by candidate_ms, trajectory) = 1
),
files as (
    select task, unnest(json_keys(candidate -> 'files')) as name, candidate -> 'files' as texts from best
),
written as (
    select task, string_agg('// ' || name || chr(10) || json_extract_string(texts, '$."' || name || '"'), chr(10) order by name) as kernel
    from files group by task
)
select
    b.task, array_to_string(t.operators, ' ') as operators, b.run, b.checkpoint, b.candidate_ms, b.eager_ms, b.compile_ms,
    b.speedup_eager_median as speedup_eager, b.speedup_compile_median as speedup_compile, w.kernel
from best b
join written w using (task)
left join tasks t on t.id = b.task
order by speedup_eager desc, b.task
