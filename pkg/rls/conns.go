package rls

import (
	"context"
	"net"
	"sync"
)

// connections counts the open ones. Its zero value counts none.
type connections struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // non-nil while n > 0 and somebody waits; closed when n becomes 0
}

func (c *connections) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *connections) remove() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

func (c *connections) gauge() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return float64(c.n)
}

// waitIdle returns true when nobody is connected, false when ctx ends first.
func (c *connections) waitIdle(ctx context.Context) bool {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return true
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// countingListener counts the connections of a listener while they are open.
type countingListener struct {
	net.Listener
	conns *connections
}

// Accept waits for the next connection.
func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.conns.add()
	return &countedConn{Conn: c, conns: l.conns}, nil
}

type countedConn struct {
	net.Conn
	conns *connections
	once  sync.Once
}

// Close closes the connection and counts it out.
func (c *countedConn) Close() error {
	c.once.Do(c.conns.remove)
	return c.Conn.Close()
}
