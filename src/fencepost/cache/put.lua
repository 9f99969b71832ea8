-- put: write a value that the source does not have yet, into its entry and into the journal.
-- KEYS   opening {shard}:E, entry {shard}:key:v, lease {shard}:key:l, marks {shard}:key:m,
--        intents {shard}:key:w, journal {shard}:key:j, due {shard}:Q, since {shard}:D, aside {shard}:X
-- ARGV   epoch, server, key, value, fresh_ms, ttl_ms, delay_ms, remember_ms
-- needs: opened, now, whole, newest, wake, stop
-- ->     CLOSED epoch     the shard is not open at this epoch on this server
-- ->     PUT version      epoch.seq: the value's place in the order of writes
local opening, entry, lease, marks, intents = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local journal, due, since, aside = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local epoch, server, key, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local fresh_ms, ttl_ms, delay_ms, remember_ms = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
local refusal = closed(opening, epoch, server)
if refusal then return refusal end
-- All that could fail is read before the first write: a script that fails half-way is not rolled back.
local known, waits = newest(entry, marks, '-'), redis.call('ZSCORE', due, key)
redis.call('ZSCORE', since, key)
redis.call('HEXISTS', journal, 'version')
redis.call('HEXISTS', aside, key)
-- First of the writes, since the server may refuse it for want of memory: then nothing has changed.
local seq = redis.call('HINCRBY', opening, 's', 1)
local version = string.format('%s.%.0f', epoch, seq)
redis.call('HSET', journal, 'version', version, 'entry', value, 'fresh_ms', fresh_ms, 'ttl_ms', ttl_ms)
redis.call('HDEL', journal, 'tries')
-- Without an end of its own: it must be there until the source has it.
redis.call('SET', entry, value)
if not waits then redis.call('ZADD', due, now() + delay_ms, key) end
redis.call('ZADD', since, 'NX', now(), key)
redis.call('HDEL', aside, key)
-- A load that began before this read an older value, and must not publish it after the save.
stop(lease, marks, intents, known, remember_ms)
return {'PUT', version}
