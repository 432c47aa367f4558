-- registry.py's law inside Valkey (policy.py's rules included); the docstrings there say what it means, and tests run
-- both side by side. bucket.lua stands before this text; `now` is handed to its functions.
-- KEYS: lease (sorted set: epoch by expiry), meta (hash: born, heard_at), then per op:
--   acquire  held, calling (hashes of the deployment), buckets...
--   beat     held, calling of each deployment
--   leave    held of each deployment
--   adjust   instead of all these: buckets
-- ARGV: op, request (JSON), clock ("" = the server's; tests pass milliseconds), settings (JSON), channel
-- Answers one JSON text.

local op, q = ARGV[1], cjson.decode(ARGV[2])
local settings = cjson.decode(ARGV[4])
-- Rewritten at each heartbeat while anybody is there; a deployment taken out of the fleet leaves nothing behind.
local HELD_TTL_MS = 60000
local LAST_SHARE_PARTS, SCARCE_PARTS = 4, 5
local PUSHED_AT = ''

local function server_now()
  if ARGV[3] ~= '' then return tonumber(ARGV[3]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function text(number) return string.format('%.0f', number) end

-- ── policy ──

local function parts(weight, count)
  return { math.ceil(weight[1] / count), math.ceil(weight[2] / count) }
end

local function add(a, b) return { a[1] + b[1], a[2] + b[2] } end
local function within(a, b) return a[1] <= b[1] and a[2] <= b[2] end

local function total(weights)
  local sum = { 0, 0 }
  for _, weight in pairs(weights) do sum = add(sum, weight) end
  return sum
end

local function idle(floor, used)
  used = used or { 0, 0 }
  return { math.max(0, floor[1] - used[1]), math.max(0, floor[2] - used[2]) }
end

local function idle_of_all(floors, used, but)
  local sum = { 0, 0 }
  for name, floor in pairs(floors) do
    if name ~= but then sum = add(sum, idle(floor, used[name])) end
  end
  return sum
end

local function inside_floor(floors, account, weight, used)
  local floor = floors[account]
  return floor ~= nil and within(add(used[account] or { 0, 0 }, weight), floor)
end

local function fits(limit, floors, ask, used, calling)
  local after = add(total(used), ask.w)
  if ask.k == 'batch' then
    local scarce = parts(limit, SCARCE_PARTS)
    return within(add(after, idle_of_all(floors, used, nil)), { limit[1] - scarce[1], limit[2] - scarce[2] })
  end
  local inside = inside_floor(floors, ask.a, ask.w, used)
  local kept = { 0, 0 }
  for name, floor in pairs(floors) do
    if name ~= ask.a then
      local promised = floor
      if inside or not calling[name] then promised = parts(floor, LAST_SHARE_PARTS) end
      kept = add(kept, idle(promised, used[name]))
    end
  end
  return within(add(after, kept), limit)
end

local function headroom(limit, floors, ask, used)
  local scarce, sum, unused = parts(limit, SCARCE_PARTS), total(used), idle_of_all(floors, used, ask.a)
  local room = {}
  for i = 1, 2 do room[i] = math.max(0, math.min(ask.h[i], limit[i] - scarce[i] - sum[i] - unused[i])) end
  if room[1] == 0 or room[2] == 0 then return { 0, 0 } end
  return room
end

local function is_scarce(limit, used)
  return not within(add(total(used), parts(limit, SCARCE_PARTS)), limit)
end

-- ── registry ──

local now = server_now()

if op == 'adjust' then
  local levels = {}
  for i, charge in ipairs(q) do
    local bucket = bucket_load(KEYS[i], charge[1], now)
    bucket_adjust(bucket, charge[1], charge[2])
    bucket_save(KEYS[i], bucket)
    levels[i] = bucket.level
  end
  return cjson.encode(levels)
end

if op == 'leave' then
  redis.call('ZREM', KEYS[1], q.epoch)
  for i = 3, #KEYS do redis.call('HDEL', KEYS[i], q.epoch) end
  return '{}'
end

local meta = redis.call('HMGET', KEYS[2], 'born', 'heard_at')
local born, heard_at = tonumber(meta[1] or nil), tonumber(meta[2] or nil)
if not born or not heard_at or now - heard_at > settings.gap_ms then born = now end
now = math.max(now, heard_at or now)
redis.call('HSET', KEYS[2], 'born', text(born), 'heard_at', text(now))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now))
local lost = q.known and not redis.call('ZSCORE', KEYS[1], q.epoch)
redis.call('ZADD', KEYS[1], text(now + settings.ttl_ms), q.epoch)
local alive, replicas = {}, 0
for _, epoch in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  alive[epoch] = true
  replicas = replicas + 1
end
local settling = now - born < settings.settle_ms

local function write(key, gauges)
  local record = redis.call('HGET', key, q.epoch)
  if record and cjson.decode(record).s >= q.seq then return false end
  redis.call('HSET', key, q.epoch, cjson.encode({ s = q.seq, g = gauges }))
  redis.call('PEXPIRE', key, HELD_TTL_MS)
  return true
end

-- What all living replicas hold, by account; the dead are removed on sight.
local function sum_of(key)
  local used, fields = {}, redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if not alive[fields[i]] then
      redis.call('HDEL', key, fields[i])
    else
      for account, weight in pairs(cjson.decode(fields[i + 1]).g) do
        used[account] = add(used[account] or { 0, 0 }, weight)
      end
    end
  end
  return used
end

-- Tenants refused inside their floor a moment ago.
local function calling_at(key)
  local calling, fields, any = {}, redis.call('HGETALL', key), false
  for i = 1, #fields, 2 do
    if fields[i] ~= PUSHED_AT then
      if tonumber(fields[i + 1]) > now then
        calling[fields[i]] = true
        any = true
      else
        redis.call('HDEL', key, fields[i])
      end
    end
  end
  return calling, any
end

local answer = { replicas = replicas, lost = lost and true or false, settling = settling }

if op == 'beat' then
  answer.scarce = {}
  for i, deployment in ipairs(q.deployments) do
    local held, calls = KEYS[1 + 2 * i], KEYS[2 + 2 * i]
    write(held, deployment.g)
    local _, any = calling_at(calls)
    answer.scarce[i] = any or is_scarce(deployment.limit, sum_of(held))
  end
  return cjson.encode(answer)
end

local held, calls, limit, floors, own = KEYS[3], KEYS[4], q.limit, q.floors, q.g
local fresh = write(held, own)
local calling, any_calling = calling_at(calls)
local used = sum_of(held)
local refused = false
local answers = {}

local share = nil
if settling then
  local count = math.max(q.replicas, replicas)
  share = { math.max(1, math.floor(limit[1] / count)), math.max(1, math.floor(limit[2] / count)) }
end

local function decide(ask)
  if not fits(limit, floors, ask, used, calling) then return { v = 'full' } end
  if share then
    local weight = { math.min(ask.w[1], share[1]), math.min(ask.w[2], share[2]) }
    if not within(add(total(own), weight), share) then return { v = 'full' } end
  end
  local buckets = {}
  for i, loan in ipairs(ask.l) do
    buckets[i] = bucket_load(KEYS[loan[1]], loan[2], now)
    local wait = bucket_wait_ms(buckets[i], loan[2], loan[3])
    if wait ~= 0 then return { v = 'limited', s = i - 1, w = wait } end
  end
  local lent = {}
  for i, loan in ipairs(ask.l) do
    lent[i] = { bucket_take(buckets[i], loan[3], loan[4]), buckets[i].level }
    bucket_save(KEYS[loan[1]], buckets[i])
  end
  used[ask.a] = add(used[ask.a] or { 0, 0 }, ask.w)
  own[ask.a] = add(own[ask.a] or { 0, 0 }, ask.w)
  local room = { 0, 0 }
  if not share then room = headroom(limit, floors, ask, used) end
  used[ask.a], own[ask.a] = add(used[ask.a], room), add(own[ask.a], room)
  return { v = 'granted', h = room, l = lent }
end

for i, ask in ipairs(q.asks) do
  local verdict = { v = 'full' }
  if fresh then verdict = decide(ask) end
  answers[i] = verdict
  if verdict.v == 'granted' then
    if calling[ask.a] then
      calling[ask.a] = nil
      redis.call('HDEL', calls, ask.a)
    end
  elseif verdict.v == 'full' then
    refused = true
    if inside_floor(floors, ask.a, ask.w, used) then
      calling[ask.a] = true
      redis.call('HSET', calls, ask.a, text(now + settings.calling_ms))
      redis.call('PEXPIRE', calls, HELD_TTL_MS)
    end
  end
end

if fresh then redis.call('HSET', held, q.epoch, cjson.encode({ s = q.seq, g = own })) end
if refused then
  local pushed_at = tonumber(redis.call('HGET', calls, PUSHED_AT) or nil) or 0
  if now - pushed_at >= settings.push_every_ms then
    redis.call('HSET', calls, PUSHED_AT, text(now))
    redis.call('PEXPIRE', calls, HELD_TTL_MS)
    redis.call('PUBLISH', ARGV[5], q.deployment)
  end
end
answer.asks = answers
answer.scarce = refused or next(calling) ~= nil or is_scarce(limit, used)
return cjson.encode(answer)
