-- inspect: draw the next fence and read all that is known and owed of one item, in one step.
-- KEYS   opening {shard}:E, header {shard}:H:{item}, journal {shard}:P:{item}
-- ARGV   epoch, server
-- needs: opened
-- flags: allow-oom
-- resend: harmless, a second one draws a greater fence
-- ->     CLOSED epoch
-- ->     INSPECTED fence {field value …} {user version …}   the header, then the journal
local opening, header, journal = KEYS[1], KEYS[2], KEYS[3]
local epoch, server = ARGV[1], ARGV[2]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
-- In one script: what is read is exactly what is true at this fence.
local fence = redis.call('HINCRBY', opening, 'f', 1)
return {'INSPECTED', fence, redis.call('HGETALL', header), redis.call('HGETALL', journal)}
