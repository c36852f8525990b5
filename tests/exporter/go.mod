module exporter

go 1.21

require github.com/prometheus/memcached_exporter v0.14.4
