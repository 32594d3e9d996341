package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// embedded is a Redis inside the process. It has no port: it knows no password, and a malformed XADD from a stranger would
// end the process. Each dial gets one end of a socket pair; miniredis's own Dial, a net.Pipe without a buffer, deadlocks on
// pipelines.
type embedded struct {
	server *miniredis.Miniredis
}

func startEmbedded() (*embedded, error) {
	e := &embedded{server: miniredis.NewMiniRedis()}
	first, err := e.server.Dial() // brings the server up without a listener
	if err != nil {
		return nil, fmt.Errorf("start the embedded Redis: %w", err)
	}
	return e, first.Close()
}

func (e *embedded) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:            "embedded",
		Protocol:        2,
		DisableIdentity: true,
		Dialer:          func(context.Context, string, string) (net.Conn, error) { return e.dial() },
		PoolSize:        8,
		MaxRetries:      -1,
	})
}

func (e *embedded) dial() (net.Conn, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	var ends [2]net.Conn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "embedded redis")
		ends[i], err = net.FileConn(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("make a socket pair: %w", err)
		}
	}
	e.server.Server().ServeConn(ends[0])
	return ends[1], nil
}

// tick moves the server's clock, which does not run by itself: keys expire by it.
func (e *embedded) tick(ctx context.Context) {
	const step = time.Second
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			e.server.FastForward(step)
		}
	}
}
