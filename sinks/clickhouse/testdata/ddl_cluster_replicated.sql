-- database pin_analytics
CREATE DATABASE IF NOT EXISTS `pin_analytics` ON CLUSTER `analytics`;
-- table pin_analytics.property_object_price_history_facts_local
CREATE TABLE IF NOT EXISTS `pin_analytics`.`property_object_price_history_facts_local` ON CLUSTER `analytics`
(
    `FactId` String,
    `SourceEventId` String,
    `PropertyObjectId` UUID,
    `DeveloperId` UUID,
    `TenantId` String,
    `ProjectId` UUID,
    `BuildingId` Int64,
    `LayoutGroupId` Int64,
    `LayoutId` Int64,
    `AreaTotal` Decimal(10, 2),
    `OldPrice` Nullable(Decimal(18, 2)),
    `NewPrice` Decimal(18, 2),
    `OldPricePerMeter` Nullable(Decimal(18, 2)),
    `NewPricePerMeter` Decimal(18, 2),
    `CurrencyId` Int16,
    `CurrencyIsoCode` String,
    `EventTime` DateTime('UTC'),
    `IngestionTime` DateTime('UTC'),
    `BrandId` Nullable(UUID),
    `ChangeSource` String,
    `TransformVersion` Int32
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}', IngestionTime)
PARTITION BY toYYYYMM(EventTime)
ORDER BY (PropertyObjectId, EventTime, FactId);
-- table pin_analytics.property_object_price_history_facts
CREATE TABLE IF NOT EXISTS `pin_analytics`.`property_object_price_history_facts` ON CLUSTER `analytics`
(
    `FactId` String,
    `SourceEventId` String,
    `PropertyObjectId` UUID,
    `DeveloperId` UUID,
    `TenantId` String,
    `ProjectId` UUID,
    `BuildingId` Int64,
    `LayoutGroupId` Int64,
    `LayoutId` Int64,
    `AreaTotal` Decimal(10, 2),
    `OldPrice` Nullable(Decimal(18, 2)),
    `NewPrice` Decimal(18, 2),
    `OldPricePerMeter` Nullable(Decimal(18, 2)),
    `NewPricePerMeter` Decimal(18, 2),
    `CurrencyId` Int16,
    `CurrencyIsoCode` String,
    `EventTime` DateTime('UTC'),
    `IngestionTime` DateTime('UTC'),
    `BrandId` Nullable(UUID),
    `ChangeSource` String,
    `TransformVersion` Int32
)
ENGINE = Distributed('analytics', 'pin_analytics', 'property_object_price_history_facts_local', sipHash64(PropertyObjectId));
