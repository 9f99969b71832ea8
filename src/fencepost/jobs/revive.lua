-- revive: run jobs again that were given up; what was counted against them is forgotten.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, counts :m, unique :u, dead :x, wake :t
-- ARGV   ids…
-- needs: clock, record, place
-- resend: harmless, who is not dead is left alone
-- ->     revived    how many
local bodies, due, ready, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local unique, dead, wake = KEYS[5], KEYS[6], KEYS[7]

local q = {bodies = bodies, due = due, ready = ready, counts = counts, wake = wake}
local _, now_ms = clock()
local revived = 0
for i = 1, #ARGV do
  local id = ARGV[i]
  if redis.call('ZREM', dead, id) == 1 then
    redis.call('HDEL', counts, id)
    local _, priority, _, window, key = head_of(redis.call('HGET', bodies, id) or '')
    if window ~= '-' then redis.call('HSETNX', unique, key, id) end
    put(q, id, priority, now_ms, now_ms)
    revived = revived + 1
  end
end
if revived > 0 then call_one(q) end
return revived
