-- The job lets go of its unique key: at its start (``p``), at its end (``r``), or so many milliseconds after.
local function release_key(q, id, window, key, now_ms)
  if window == '-' then return end
  if redis.call('HGET', q.unique, key) == id then redis.call('HDEL', q.unique, key) end
  if window ~= 'p' and window ~= 'r' then
    local until_text = digits(now_ms + tonumber(window))
    redis.call('ZADD', q.remembered, until_text, 'k' .. key)
  end
end
-- It waits again: it holds its key again, if nobody took it meanwhile.
local function regain_key(q, id, window, key)
  if window == 'p' then redis.call('HSETNX', q.unique, key, id) end
end

