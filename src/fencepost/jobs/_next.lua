-- Microseconds until something is due or a lease ends; 0 if there is work now, -1 if nothing is known.
local function next_us(q, now_us)
  local wait_us = -1
  for _, key in ipairs({q.due, q.claimed}) do
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first then
      local left_us = math.max(math.floor(tonumber(first)) * 1000 - now_us, 0)
      if wait_us < 0 or left_us < wait_us then wait_us = left_us end
    end
  end
  return wait_us
end
-- Whoever leaves work that others could do, or sees something due that it has no room for, calls the next
-- one: the token that woke it is gone, and the others sleep on what they knew.
local function chain(q, left, wait_us, look_ms)
  local soon = left <= 0 and wait_us >= 0 and wait_us < look_ms * 1000
  if soon or redis.call('ZCARD', q.ready) > 0 then call_one(q) end
end
-- Whether anything may be taken now: not while the queue is paused, nor above its limit of running jobs.
local function open_for(q, limit)
  if redis.call('HEXISTS', q.head, 'paused') == 1 then return 0 end
  if limit <= 0 then return math.huge end
  return math.max(limit - redis.call('ZCARD', q.claimed), 0)
end
-- What is too old to matter goes, a little at a time.
local function forget(q, now_ms, keep_ms)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', q.alive, '-inf', digits(now_ms - keep_ms), 'LIMIT', 0, 2)) do
    redis.call('ZREM', q.alive, worker)
    redis.call('HDEL', q.workers, worker)
    redis.call('HDEL', q.known, worker)
  end
  local old = redis.call('ZRANGEBYSCORE', q.remembered, '-inf', digits(now_ms), 'LIMIT', 0, 50)
  if #old > 0 then redis.call('ZREM', q.remembered, unpack(old)) end
end

