
-- Who waits longest, and for how many milliseconds that one may still be silent. Who was silent for
-- longer is dead, and costs those behind nothing more.
local function first(queue, alive)
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  for _ = 1, 100 do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then return nil, 0, now_ms end
    local until_ms = tonumber(redis.call('ZSCORE', alive, head) or '0')
    if until_ms > now_ms then return head, until_ms - now_ms, now_ms end
    redis.call('ZREM', queue, head)
    redis.call('ZREM', alive, head)
  end
  return nil, 0, now_ms
end
