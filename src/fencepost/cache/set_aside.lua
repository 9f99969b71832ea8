-- set_aside: take a value that the source refuses out of the journal, and keep it with the reason.
-- KEYS   opening {shard}:E, entry {shard}:key:v, journal {shard}:key:j, due {shard}:Q, since {shard}:D,
--        aside {shard}:X
-- ARGV   epoch, server, key, version, reason, most
-- needs: opened
-- flags: allow-oom
-- resend: harmless, a second one finds it gone
-- ->     CLOSED epoch
-- ->     ASIDE
-- ->     FULL       so many are kept already: it stays in the journal
-- ->     CHANGED    a newer value came meanwhile, or it was saved
local opening, entry, journal, due, since = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local aside = KEYS[6]
local epoch, server, key, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local reason, most = ARGV[5], tonumber(ARGV[6])

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
local kept = redis.call('HMGET', journal, 'version', 'entry')
if kept[1] ~= version then return {'CHANGED'} end
if redis.call('HLEN', aside) >= most and redis.call('HEXISTS', aside, key) == 0 then return {'FULL'} end
redis.call('HSET', aside, key, table.concat({version, reason, kept[2]}, '\n'))
redis.call('ZREM', due, key)
redis.call('ZREM', since, key)
-- With its entry: readers see what the source has.
redis.call('DEL', journal, entry)
return {'ASIDE'}
