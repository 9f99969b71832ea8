-- claim: draw the next fence and read some items' journals, in one step; nothing is removed.
-- KEYS   opening {shard}:E, due {shard}:Q, journal {shard}:P:{item}…
-- ARGV   epoch, server, push_ms, limit, item…
-- needs: opened, identity, now
-- flags: allow-oom
-- resend: harmless, a second claim draws a greater fence
-- ->     CLOSED epoch
-- ->     CLAIMED fence now_ms {whole user version …}…   an item each; whole is 1 if that is all of its journal.
--        Items for which no room is left are neither whole nor have any
local opening, due = KEYS[1], KEYS[2]
local epoch, server, push_ms, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
if elsewhere(server) then return {'CLOSED', ''} end

-- Up to limit entries of all items together. A journal that is longer gives some of them: what is
-- acked is removed, so the next claim gets others.
local left = limit
local function read(journal)
  if redis.call('HLEN', journal) <= left then return 1, redis.call('HGETALL', journal) end
  local cursor, found = '0', {}
  while #found == 0 and left > 0 do
    local page = redis.call('HSCAN', journal, cursor, 'COUNT', left)
    cursor, found = page[1], page[2]
    if cursor == '0' then break end
  end
  return 0, found
end

-- The fence is drawn and the journal read in one script: fence order must be read order, or an
-- older reading could be committed under a newer fence.
local at = now()
local reply = {'CLAIMED', redis.call('HINCRBY', opening, 'f', 1), at}
for i = 3, #KEYS do
  local whole, entries = read(KEYS[i])
  local taken = math.min(#entries, 2 * left)
  local batch = {whole}
  for j = 1, taken do batch[j + 1] = entries[j] end
  left = left - taken / 2
  -- Pushed, for the case that we die; what was not looked at stays due.
  if whole == 1 or taken > 0 then redis.call('ZADD', due, 'XX', at + push_ms, ARGV[i + 2]) end
  reply[#reply + 1] = batch
end
return reply
