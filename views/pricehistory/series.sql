SELECT
    substring(toString(toDate(changedAt, 'UTC')), 1, {length:UInt8}) AS period,
    argMax(price, (changedAt, FactId)) AS lastPrice,
    argMax(pricePerMeter, (changedAt, FactId)) AS lastPricePerMeter,
    count() AS facts
FROM
(
    SELECT
        FactId,
        argMax((EventTime, NewPrice, NewPricePerMeter), (IngestionTime, TransformVersion, EventTime, NewPrice, NewPricePerMeter)) AS newest,
        newest.1 AS changedAt,
        newest.2 AS price,
        newest.3 AS pricePerMeter
    FROM pin_analytics.property_object_price_history_facts
    WHERE PropertyObjectId = {object:UUID}
    GROUP BY FactId
)
WHERE changedAt BETWEEN {from:DateTime('UTC')} AND {to:DateTime('UTC')}
GROUP BY period
ORDER BY period
LIMIT {limit:UInt32}
