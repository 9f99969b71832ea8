-- look: read a shard's opening record, and who this server is.
-- KEYS   opening {shard}:E
-- ARGV   server
-- needs: identity
-- resend: harmless, it changes nothing
-- ->     epoch id server policy   epoch and id are '' where there is none; policy is the eviction policy
-- ->     error STALELINK          the connection greeted an earlier life of this server: reconnect
local opening = KEYS[1]
local greeted = ARGV[1]

if elsewhere(greeted) then
  return redis.error_reply('STALELINK this connection greeted an earlier life of the server')
end
local record = redis.call('HMGET', opening, 'e', 'id', 'f', 's')
local whole = record[1] and record[2] and record[3] and record[4]
local memory = redis.pcall('INFO', 'memory')
local policy = type(memory) == 'string' and memory:match('maxmemory_policy:([%w-]+)') or ''
return {record[1] or '', whole and record[2] or '', greeted, policy}
