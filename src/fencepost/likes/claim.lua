-- claim: draw the next fence and read some items' journals, in one step; nothing is removed.
-- KEYS   opening {shard}:E, due {shard}:Q, journal {shard}:P:{item}…
-- ARGV   epoch, server, push_ms, limit, item…
-- needs: opened, identity, now
-- flags: allow-oom
-- resend: harmless, a second claim draws a greater fence
-- ->     CLOSED epoch
-- ->     CLAIMED fence now_ms {whole user version …}…   an item each; whole is 1 if that is all of its journal
local opening, due = KEYS[1], KEYS[2]
local epoch, server, push_ms, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
if elsewhere(server) then return {'CLOSED', ''} end

-- Up to limit entries. A journal that is longer gives some of them: what is acked is removed, so
-- the next claim gets others.
local function read(journal)
  if redis.call('HLEN', journal) <= limit then return 1, redis.call('HGETALL', journal) end
  local cursor, found = '0', {}
  repeat
    local page = redis.call('HSCAN', journal, cursor, 'COUNT', limit)
    cursor, found = page[1], page[2]
  until #found > 0 or cursor == '0'
  return 0, found
end

-- The fence is drawn and the journal read in one script: fence order must be read order, or an
-- older reading could be committed under a newer fence.
local at = now()
local reply = {'CLAIMED', redis.call('HINCRBY', opening, 'f', 1), at}
for i = 3, #KEYS do
  redis.call('ZADD', due, 'XX', at + push_ms, ARGV[i + 2])
  local whole, entries = read(KEYS[i])
  local batch = {whole}
  for j = 1, math.min(#entries, 2 * limit) do batch[j + 1] = entries[j] end
  reply[#reply + 1] = batch
end
return reply
