
-- Why this server gives no vote, or nil: it may have forgotten one that it gave. Else who it is, and the
-- greatest fence that it knows. Another process or another replication history than the one in the
-- record has lost its memory, or its last second, until it has waited for the longest lease there can
-- be. Who lets every write reach its disk first, and was never a replica, loses nothing.
local function newborn(born, server, max_ttl_ms)
  local said = redis.pcall('INFO', 'server', 'replication')
  if type(said) ~= 'string' then -- Redis 6.2 takes one section a call
    local process, replication = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
    said = type(process) == 'string' and type(replication) == 'string' and process .. replication or ''
  end
  local run_id, replication_id = said:match('run_id:(%x+)'), said:match('master_replid:(%x+)')
  local alone = said:match('second_repl_offset:%-1') ~= nil
  -- Where scripts may not ask, what this connection greeted: a connection never changes its process.
  local me = run_id and replication_id and run_id .. ':' .. replication_id or server
  if me == '?' then return {'NAMELESS'} end
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local known = redis.call('HMGET', born, 'id', 'since', 'max_ttl', 'open', 'high', 'durable')
  if known[3] and known[3] ~= max_ttl_ms then return {'MISMATCH', known[3]} end
  local since, open = tonumber(known[2] or '0'), known[4] == '1'
  if known[1] ~= me and open and known[6] == '1' and alone then
    redis.call('HSET', born, 'id', me)
  elseif known[1] ~= me then
    redis.call('HSET', born, 'id', me, 'since', now_ms, 'max_ttl', max_ttl_ms, 'open', '0', 'durable', '0')
    since, open = now_ms, false
  end
  if open then return nil, me, tonumber(known[5] or '0') end
  return {'NEWBORN', math.max(since + tonumber(max_ttl_ms) - now_ms, 0), known[5] or '0', since, me}
end
