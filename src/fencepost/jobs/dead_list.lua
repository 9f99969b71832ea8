-- dead_list: jobs that were given up, the latest first.
-- KEYS   dead {ns:jobs:queue}:x, bodies :b, counts :m
-- ARGV   first, most
-- resend: harmless, it changes nothing
-- ->     id ms counts record…
local dead, bodies, counts = KEYS[1], KEYS[2], KEYS[3]
local first, most = tonumber(ARGV[1]), tonumber(ARGV[2])

local found = redis.call('ZREVRANGE', dead, first, first + most - 1, 'WITHSCORES')
local told = {}
for i = 1, #found, 2 do
  local id, n = found[i], #told
  told[n + 1], told[n + 2] = id, found[i + 1]
  told[n + 3] = redis.call('HGET', counts, id) or ''
  told[n + 4] = redis.call('HGET', bodies, id) or ''
end
return told
