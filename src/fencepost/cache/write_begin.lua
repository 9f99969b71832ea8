-- write_begin: announce a write to the source; loads may go on, but publish nothing meanwhile.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m,
--        intents {ns:cache:name:key}:w
-- ARGV   token, intent_ms, remember_ms
-- needs: whole, newest, wake, stop
-- resend: harmless, an intent is announced once
-- ->     BEGUN state    alone, or shared with other writers: then none of them may publish
local entry, lease, marks, intents = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, intent_ms, remember_ms = ARGV[1], ARGV[2], ARGV[3]

if not whole(intent_ms) then return redis.error_reply('ERR intent_ms is a positive whole number') end
local mine = redis.call('HGET', intents, token)
if mine then return {'BEGUN', mine} end
local state = redis.call('EXISTS', intents) == 0 and 'alone' or 'shared'
-- First of the writes, since the server may refuse it for want of memory: then nothing has changed.
redis.call('HSET', intents, token, state)
redis.call('PEXPIRE', intents, intent_ms)
-- If the writer dies between its save and its end, what it made stale is gone with its intent; the
-- newest revision is remembered beyond that.
stop(lease, marks, intents, newest(entry, marks, '-'), remember_ms)
redis.call('HSET', intents, token, state)
if redis.call('PTTL', entry) > tonumber(intent_ms) then redis.call('PEXPIRE', entry, intent_ms) end
return {'BEGUN', state}
