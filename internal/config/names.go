package config

// The topics and groups of the specification. They are part of the contracts with other teams, so they are no settings.
const (
	TopicPurchaseChanged = "pin.promotion.purchase-changed.v1"
	TopicViewEnded       = "pin.user-activity.property-object-view-ended.v1"
	TopicPriceChanged    = "pin.chessboard.property-object-price-changed.v1"

	TopicPromotionDLQ  = "pin.catalog.promotion-boost-dlq.v1"
	TopicPopularityDLQ = "pin.catalog.popularity-dlq.v1"
	TopicPriceDLQ      = "pin.invest-analytics.price-history-dlq.v1"

	GroupPromotion  = "pin-catalog-promotion-boost"
	GroupPopularity = "pin-catalog-popularity"
	GroupPrice      = "invest-analytics-price-history"
)

// The roles of an instance. The first three are also the names of the consumers in API and CLI.
const (
	RolePromotion  = "promotion"
	RolePopularity = "popularity"
	RolePrice      = "price"
	RoleAPI        = "api"
)

// Roles lists every role.
func Roles() []string { return []string{RolePromotion, RolePopularity, RolePrice, RoleAPI} }

// Consumer is what one consumer is called in Kafka.
type Consumer struct{ Role, Group, Topic, DLQ string }

// Consumers lists the three consumers in the order of the specification's documents.
func Consumers() []Consumer {
	return []Consumer{PromotionConsumer(), PopularityConsumer(), PriceConsumer()}
}

// PromotionConsumer is the consumer of role promotion.
func PromotionConsumer() Consumer {
	return Consumer{RolePromotion, GroupPromotion, TopicPurchaseChanged, TopicPromotionDLQ}
}

// PopularityConsumer is the consumer of role popularity.
func PopularityConsumer() Consumer {
	return Consumer{RolePopularity, GroupPopularity, TopicViewEnded, TopicPopularityDLQ}
}

// PriceConsumer is the consumer of role price.
func PriceConsumer() Consumer {
	return Consumer{RolePrice, GroupPrice, TopicPriceChanged, TopicPriceDLQ}
}

// ConsumerOf returns the consumer of a role that somebody wrote, if it has one.
func ConsumerOf(role string) (Consumer, bool) {
	for _, c := range Consumers() {
		if c.Role == role {
			return c, true
		}
	}
	return Consumer{}, false
}

// TableTopic is the compacted topic of a group's table and LoopTopic its loop topic, as Goka names them.
func (c Consumer) TableTopic() string { return c.Group + "-table" }

// LoopTopic is the topic through which records reach the partition their key belongs to.
func (c Consumer) LoopTopic() string { return c.Group + "-loop" }
