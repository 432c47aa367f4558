-- ratelimit/core.py inside Valkey. Prepended to the scripts that charge buckets; needs `now` (milliseconds).
local UNITS, NEVER_MS = 60000, -1
-- A bucket in the deepest debt is full again after two minutes, and a full one is as good as none.
local BUCKET_TTL_MS = 130000

local function bucket_load(key, limit, now)
  local fields = redis.call('HMGET', key, 'level', 'at')
  if not fields[1] or not fields[2] then return { level = limit * UNITS, at = now } end
  local at = tonumber(fields[2])
  now = math.max(now, at)
  return { level = math.min(limit * UNITS, tonumber(fields[1]) + (now - at) * limit), at = now }
end

local function bucket_wait_ms(bucket, limit, amount)
  if amount > limit then return NEVER_MS end
  local missing = amount * UNITS - bucket.level
  if missing <= 0 then return 0 end
  return math.ceil(missing / limit)
end

local function bucket_take(bucket, amount, slice)
  local left = bucket.level - amount * UNITS
  local lent = math.max(0, math.min(slice, math.floor(left / UNITS)))
  bucket.level = left - lent * UNITS
  return lent
end

local function bucket_adjust(bucket, limit, amount)
  bucket.level = math.max(-limit * UNITS, math.min(limit * UNITS, bucket.level - amount * UNITS))
end

local function bucket_save(key, bucket)
  redis.call('HSET', key, 'level', string.format('%.0f', bucket.level), 'at', string.format('%.0f', bucket.at))
  redis.call('PEXPIRE', key, BUCKET_TTL_MS)
end
