-- shift_jobs: let time pass for a queue: to the next moment at which something is due, or for all of it.
-- KEYS   due {ns:jobs:queue}:d, claimed :c, remembered :o
-- ARGV   most_ms
-- ->     ms    how much has passed
local due, claimed, remembered = KEYS[1], KEYS[2], KEYS[3]
local most_ms = tonumber(ARGV[1])

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local later = string.format('%.0f', now_ms + 1)
local first = redis.call('ZRANGEBYSCORE', due, later, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local step_ms = most_ms
if first then step_ms = math.min(most_ms, math.floor(tonumber(first)) - now_ms) end
for _, key in ipairs({due, claimed, remembered}) do
  local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    redis.call('ZADD', key, string.format('%.4f', tonumber(all[i + 1]) - step_ms), all[i])
  end
end
return step_ms
