-- write_end: publish what was saved if nobody else wrote meanwhile, else forget the entry.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m,
--        intents {ns:cache:name:key}:w
-- ARGV   token, revision, entry, ttl_ms, remember_ms
-- needs: whole, newest, wake, stop
-- resend: harmless, a second one finds its intent gone, and its token in the entry
-- ->     PUBLISHED
-- ->     FORGOTTEN    writers overlapped, this one outlived its intent, or it gave no entry
local entry, lease, marks, intents = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, revision, value, ttl_ms, remember_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
if redis.pcall('GETRANGE', entry, 2, 23) == token then return {'PUBLISHED'} end
local known = newest(entry, marks, revision)
local older = revision:match('^%d') and revision ~= known
local alone = redis.call('HGET', intents, token) == 'alone' and value ~= '' and not older
-- First of the writes, since the server may refuse it for want of memory: then nothing has changed.
if alone then redis.call('SET', entry, value, 'PX', ttl_ms) else redis.call('DEL', entry) end
redis.call('HDEL', intents, token)
-- Those who still write saw this one, or came after its intent had ended: none of them was alone.
stop(lease, marks, intents, known, remember_ms)
return {alone and 'PUBLISHED' or 'FORGOTTEN'}
