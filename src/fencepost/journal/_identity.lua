
-- Is the server somebody else than the one that this connection greeted? Another process or another
-- replication history is somebody else. Where an ACL forbids INFO only the greeting counts.
local function elsewhere(server)
  if server == '?' then return false end
  local process, replication = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
  if type(process) ~= 'string' or type(replication) ~= 'string' then return false end
  return process:match('run_id:(%x+)') .. ':' .. replication:match('master_replid:(%x+)') ~= server
end
