package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Error is an error that Redis replied.
type Error string

// Error returns the text of the reply, with its code in front, such as "WRONGTYPE Operation against ...".
func (e Error) Error() string { return string(e) }

// conn speaks enough RESP2 for tests to look into a server without the client that is under test.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(network, addr string, limit time.Duration) (*conn, error) {
	c, err := net.DialTimeout(network, addr, limit)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, r: bufio.NewReader(c)}, nil
}

// do sends one command and reads its reply: string, int64, nil, []any of these, or an Error as the error.
func (c *conn) do(args []string, limit time.Duration) (any, error) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		request = fmt.Appendf(request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	reply, err := c.read()
	if err != nil {
		return nil, err
	}
	if e, ok := reply.(Error); ok {
		return nil, e
	}
	return reply, nil
}

func (c *conn) read() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, fmt.Errorf("reply %q is no RESP", line)
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return Error(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("reply %q is no RESP: %w", line, err)
	}
	switch {
	case kind == ':':
		return n, nil
	case (kind == '$' || kind == '*') && n < 0:
		return nil, nil
	case kind == '$':
		body := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, body); err != nil {
			return nil, err
		}
		return string(body[:n]), nil
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = c.read(); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("reply %q is no RESP2", line)
}
