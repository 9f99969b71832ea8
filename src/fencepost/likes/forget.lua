-- forget: an item is being deleted: drop all that is known and owed, and leave a tombstone.
-- KEYS   opening {shard}:E, header {shard}:H:{item}, journal {shard}:P:{item}, due {shard}:Q,
--        since {shard}:D, tokens {shard}:G:{item}
-- ARGV   epoch, server, item, gone_ms
-- needs: opened
-- flags: allow-oom
-- resend: harmless, the tombstone is renewed
-- ->     CLOSED epoch
-- ->     GONE
local opening, header, journal, due, since, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local epoch, server, item, gone_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
redis.call('DEL', header, journal, tokens)
redis.call('ZREM', due, item)
redis.call('ZREM', since, item)
redis.call('HSET', header, '#gone', 1, '#e', epoch)
redis.call('PEXPIRE', header, gone_ms)
return {'GONE'}
