module interop

go 1.20

require github.com/apache/rocketmq-client-go/v2 v2.1.2
