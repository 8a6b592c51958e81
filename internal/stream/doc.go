// Package stream runs Goka so that nothing is lost and nothing is taken for what it is not (design, E1, E2, E6 and section 3).
//
// A Runtime runs one consumer, described by a Spec. It prepares topics and local state, runs a Goka processor behind the
// commit guard, and builds a new one with backoff when one ends.
//
// Where each fact of the design's section 3 about Goka and sarama is dealt with:
//
//  1. defaults: KafkaConfig.Sarama, a fresh configuration for every builder; tested in TestSaramaSettings.
//  2. a table write goes to hash(key): Hasher, Context.Home, the loop topic; TestStateLandsWhereItsKeyBelongs.
//  3. Fail and plain returns after a session's end commit: Spec.graph; TestReturnAfterTheSessionsEndIsNoFinish.
//  4. any error ends the processor, for good: Runtime.loop; streams are bytes, MaxValueBytes, which processors.Loop checks;
//     TestFailuresAreFollowedByANewProcessor, TestAnOversizedMisplacedRecord….
//  5. tombstones: WithNilHandling(NilProcess) in gokaOptions; TestRawRecordReachesTheCallback.
//  6. recreated topics: stateDir.prepare, accept, sameTopics; TestStaleLocalStateIsDropped, TestRecreatedSource….
//  7. __offset, SetValue(nil), VisitAll: keys are uuids, states are never nil, VisitAll is not used.
//  8. no transactional writers on tables; leaders are awaited before a start: waitForLeaders.
//  9. lag comes from the broker: Admin.GroupPositions, monitor; TestLagComesFromTheBroker.
//  10. views reconnect, are made once and close their clients: View.
//  11. 5 s of sleep after a session, 60 s for deferred commits, sorted member ids: rejoining, Runtime.stop, KafkaConfig.ClientID;
//     TestTwoInstancesShareAndHandOver, TestStopIsBounded.
//  12. Producer.Retry.Max 1,000 in KafkaConfig.Sarama; the processor's own producer is franz-go's: franzProducer.
//  13. goka/tester is not used: the tests run on the in-process broker.
//
// Package guard holds the commit guard, package tablestore the local store.
package stream
