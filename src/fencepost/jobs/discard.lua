-- discard: forget jobs that were given up.
-- KEYS   bodies {ns:jobs:queue}:b, counts :m, dead :x
-- ARGV   ids…
-- flags: allow-oom
-- resend: harmless, who is not dead is left alone
-- ->     discarded    how many
local bodies, counts, dead = KEYS[1], KEYS[2], KEYS[3]

local discarded = 0
for i = 1, #ARGV do
  local id = ARGV[i]
  if redis.call('ZREM', dead, id) == 1 then
    redis.call('HDEL', bodies, id)
    redis.call('HDEL', counts, id)
    discarded = discarded + 1
  end
end
return discarded
