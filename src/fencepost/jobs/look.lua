-- look: where a job is, and what became of it.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, claims :e, counts :m, dead :x, result {ns:jobs:queue}:R:id
-- ARGV   id
-- resend: harmless, it changes nothing
-- ->     ENDED outcome            its first letter: D done, C cancelled, X failed for good
-- ->     RUNNING claim counts     epoch, turn, since in ms, its place, flag, worker
-- ->     DUE ms counts
-- ->     READY counts
-- ->     DEAD ms counts
-- ->     GONE                     it has ended and nothing was kept, or it never was
local bodies, due, ready, claims, counts, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local result = KEYS[7]
local id = ARGV[1]

local ended = redis.call('GET', result)
if redis.call('HEXISTS', bodies, id) == 0 then
  if ended then return {'ENDED', ended} end
  return {'GONE'}
end
local tried = redis.call('HGET', counts, id) or ''
local claim = redis.call('HGET', claims, id)
if claim then return {'RUNNING', claim, tried} end
local at_ms = redis.call('ZSCORE', due, id)
if at_ms then return {'DUE', at_ms, tried} end
if redis.call('ZSCORE', ready, id) then return {'READY', tried} end
at_ms = redis.call('ZSCORE', dead, id)
if at_ms then return {'DEAD', at_ms, tried} end
return {'GONE'}
