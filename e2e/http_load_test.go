package e2e

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/envoytest"
)

// httpLoad is a stream of requests over kept connections. It goes on until finish is called and there were enough.
type httpLoad struct {
	least  uint64
	client http.Client
	url    string
	done   sync.WaitGroup

	finishing, abandoned atomic.Bool

	sent, ok, over, other atomic.Uint64
	first                 atomic.Value // The first answer that is neither 200 nor 429, as text.
}

func startHTTPLoad(t *testing.T, envoy *envoytest.Envoy, least uint64) *httpLoad {
	t.Helper()
	const callers = 16
	l := &httpLoad{
		least: least, url: "http://" + envoy.Addr("ingress") + "/load",
		client: http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: callers}},
	}
	for range callers {
		l.done.Go(l.run)
	}
	t.Cleanup(func() {
		l.abandoned.Store(true)
		l.done.Wait()
		l.client.CloseIdleConnections()
	})
	return l
}

func (l *httpLoad) run() {
	for !l.abandoned.Load() && (!l.finishing.Load() || l.sent.Load() < l.least) {
		l.sent.Add(1)
		switch status, err := l.one(); {
		case err == nil && status == http.StatusOK:
			l.ok.Add(1)
		case err == nil && status == http.StatusTooManyRequests:
			l.over.Add(1)
		default:
			l.other.Add(1)
			l.first.CompareAndSwap(nil, fmt.Sprint(status, err))
		}
	}
}

func (l *httpLoad) one() (int, error) {
	request, err := http.NewRequest(http.MethodGet, l.url, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("x-tenant", "atlas")
	response, err := l.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// finish waits until there were enough requests and all are answered.
func (l *httpLoad) finish() {
	l.finishing.Store(true)
	l.done.Wait()
}
