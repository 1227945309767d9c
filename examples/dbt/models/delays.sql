-- The delays of each airport and hour, in minutes.
select
    topic,
    date_trunc('hour', scheduled) as hour,
    count(*) as flights,
    median(delay) as median_delay,
    max(delay) as longest_delay
from {{ ref('flights') }}
group by topic, hour
