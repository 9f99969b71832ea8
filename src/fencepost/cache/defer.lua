-- defer: count a value that could not be saved by itself; it is tried again later.
-- KEYS   opening {shard}:E, journal {shard}:key:j, due {shard}:Q
-- ARGV   epoch, server, key, version, wait_ms
-- needs: opened, now
-- flags: allow-oom
-- resend: harmless, it is given up one try sooner
-- ->     CLOSED epoch
-- ->     DEFERRED tries
-- ->     CHANGED           a newer value came meanwhile, or it was saved
local opening, journal, due = KEYS[1], KEYS[2], KEYS[3]
local epoch, server, key, version, wait_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
if redis.call('HGET', journal, 'version') ~= version then return {'CHANGED'} end
redis.call('ZADD', due, now() + wait_ms, key)
return {'DEFERRED', redis.call('HINCRBY', journal, 'tries', 1)}
