
-- Is this shard open, at this epoch, on this server? What is lost is lost together: the record
-- holds epoch, fence, sequence and identity, and is born only from SQL (see open.lua).
local function closed(opening, epoch, server)
  local record = redis.call('HMGET', opening, 'e', 'id')
  if record[1] ~= epoch or record[2] ~= server then return {'CLOSED', record[1] or ''} end
end
