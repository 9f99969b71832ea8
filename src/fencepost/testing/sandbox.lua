-- sandbox: put the server into a state, run a script or a command there, and say what it became.
-- KEYS   none: it owns the whole server
-- ARGV   clock_ms, run_id, replication_id, policy, state_words, state…, key_count, key…, argument…
-- ->     ok undeclared state reply   state as it was given; reply is the error's text when ok is 0
local clock_ms, run_id, replication_id, policy = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local last = 5 + tonumber(ARGV[5])

redis.call('FLUSHALL')
local at = 6
while at <= last do
  local key, kind, volatile, size = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local add = {string = 'SET', hash = 'HSET', zset = 'ZADD', set = 'SADD', list = 'RPUSH'}
  redis.call(add[kind], key, unpack(ARGV, at + 4, at + 3 + size))
  if volatile == '1' then redis.call('PEXPIRE', key, 1000000000) end
  at = at + 4 + size
end

-- What the script sees instead of the server: the simulated clock and identity, and no key that its
-- caller did not declare.
local declared, undeclared = {}, ''
local everything = {KEYS = 1, SCAN = 1, RANDOMKEY = 1, DBSIZE = 1, FLUSHALL = 1, FLUSHDB = 1, SWAPDB = 1, MOVE = 1}
local function look(command, ...)
  local name = string.upper(command)
  if name == 'TIME' then
    return {string.format('%.0f', math.floor(clock_ms / 1000)), string.format('%.0f', clock_ms % 1000 * 1000)}
  end
  if name == 'INFO' then
    return 'run_id:' .. run_id .. '\r\nrole:master\r\nmaster_replid:' .. replication_id
      .. '\r\nmaxmemory_policy:' .. policy .. '\r\n'
  end
  if everything[name] then undeclared = name return nil end
  local used = redis.pcall('COMMAND', 'GETKEYS', command, ...)
  if used.err then return nil end -- it takes no keys, or is wrong: the server will say so
  for _, key in ipairs(used) do
    if not declared[key] then undeclared = name .. ' ' .. key end
  end
end
local function through(call)
  return function(...)
    local seen = look(...)
    if seen ~= nil then return seen end
    return call(...)
  end
end
local shim = {}
for name, value in pairs(redis) do shim[name] = value end
shim.call, shim.pcall = through(redis.call), through(redis.pcall)

local keys, arguments = {}, {}
at = last + 1
local first = at + 1 + tonumber(ARGV[at])
for i = at + 1, #ARGV do
  if i < first then
    keys[#keys + 1] = ARGV[i]
    declared[ARGV[i]] = true
  else
    arguments[#arguments + 1] = ARGV[i]
  end
end
local ok, reply = pcall(function(KEYS, ARGV, redis, server)
--BODY--
end, keys, arguments, shim, shim)
if ok and type(reply) == 'table' and reply.err then ok, reply = false, reply end
if not ok and type(reply) == 'table' then reply = reply.err end

local state = {}
local function add(key, kind, words)
  state[#state + 1], state[#state + 2], state[#state + 3] = key, kind, redis.call('PTTL', key) > 0 and '1' or '0'
  state[#state + 1] = tostring(#words)
  for i = 1, #words do state[#state + 1] = words[i] end
end
local function sorted_pairs(flat)
  local names, values, words = {}, {}, {}
  for i = 1, #flat, 2 do
    names[#names + 1] = flat[i]
    values[flat[i]] = flat[i + 1]
  end
  table.sort(names)
  for _, name in ipairs(names) do
    words[#words + 1] = name
    words[#words + 1] = values[name]
  end
  return words
end
local held = redis.call('KEYS', '*')
table.sort(held)
for _, key in ipairs(held) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'string' then
    add(key, kind, {redis.call('GET', key)})
  elseif kind == 'hash' then
    add(key, kind, sorted_pairs(redis.call('HGETALL', key)))
  elseif kind == 'zset' then
    local flat = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #flat, 2 do flat[i], flat[i + 1] = flat[i + 1], flat[i] end
    add(key, kind, flat)
  elseif kind == 'set' then
    local members = redis.call('SMEMBERS', key)
    table.sort(members)
    add(key, kind, members)
  elseif kind == 'list' then
    add(key, kind, redis.call('LRANGE', key, 0, -1))
  else
    return redis.error_reply('ERR the sandbox does not know keys of type ' .. kind)
  end
end
return {ok and 1 or 0, undeclared, state, reply}
