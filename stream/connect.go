package stream

import (
	"errors"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"

	"parley/store/hook"
)

// patience is how long Redis may take for anything. Whoever calls knows what to do without an answer, so nothing is retried;
// and one with a deadline of its own is answered by then.
const patience = 2 * time.Second

var errURL = errors.New("the Redis URL must be redis://user:password@host:port/database or rediss://…; with ?master_name=NAME the hosts are " +
	"Sentinels; with ?addr=host:port, once or more, they are nodes of a cluster, or more Sentinels")

// connect makes a client of a Redis URL. go-redis parses each form and knows more options:
//
//	redis://user:password@host:6379/0, rediss://…                        one Redis
//	redis://host1:26379/0?master_name=main&addr=host2:26379&addr=…       Sentinels
//	redis://host1:7000?addr=host2:7000&addr=…                            nodes of a cluster
func connect(raw string) (redis.UniversalClient, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, errURL
	}
	switch query := u.Query(); {
	case query.Has("master_name"):
		o, err := redis.ParseFailoverURL(raw)
		if err != nil {
			return nil, errURL
		}
		o.MaxRetries, o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = -1, patience, patience, patience, true
		return redis.NewFailoverClient(o), nil
	case query.Has("addr"):
		o, err := redis.ParseClusterURL(raw)
		if err != nil {
			return nil, errURL
		}
		o.MaxRetries, o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = -1, patience, patience, patience, true
		o.PoolSize = 2 * hook.Shards // a reader a shard blocks a connection
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(raw)
	if err != nil {
		return nil, errURL
	}
	o.MaxRetries, o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = -1, patience, patience, patience, true
	return redis.NewClient(o), nil
}

// CheckURL says what is wrong with a Redis URL.
func CheckURL(raw string) error {
	client, err := connect(raw)
	if err != nil {
		return err
	}
	return client.Close()
}
