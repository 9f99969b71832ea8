-- What is due becomes ready, a bounded number of jobs.
local function promote(q, now_ms, most)
  if most <= 0 then return end
  local below = digits(now_ms + 1)
  local found = redis.call('ZRANGEBYSCORE', q.due, '-inf', '(' .. below, 'WITHSCORES', 'LIMIT', 0, most)
  if #found == 0 then return end
  local adds, gone = {}, {}
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    local due_ms = math.floor(score)
    adds[i], adds[i + 1] = digits((score - due_ms) * 16 * 4398046511104 + due_ms), found[i]
    gone[#gone + 1] = found[i]
  end
  redis.call('ZADD', q.ready, unpack(adds))
  redis.call('ZREM', q.due, unpack(gone))
end

