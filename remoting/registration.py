"""Fields of ours in registrations of brokers (REGISTER_BROKER) and their answers; other peers pass over them."""

CHANGED_TOPICS_ALONE = "changedTopicsAlone"
"""In a registration: whether its body has some changed topics alone, so that the others have not been deleted."""
REPLACED_ADDRESS = "replacedBrokerAddr"
"""In the answer: the address that had the same name and id until then."""
LEFT_OUT_TOPICS = "leftOutTopics"
"""In the answer: how many topics of the registration are beyond a bound, and not registered."""
