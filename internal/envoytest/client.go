package envoytest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// requestLimit bounds one request from connect to the last byte of its answer.
const requestLimit = 30 * time.Second

// Response is the whole answer to a request.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Request writes an HTTP/1.1 request byte by byte, without the checks and the mending of net/http: what a test puts
// into the path or into a header goes out as it is. Headers are name, value, name, value ... and a body comes with its
// length.
func Request(method, path, body string, headers ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: northstar.example.com\r\nConnection: close\r\n", method, path)
	for i := 0; i+1 < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	if body != "" {
		b.WriteString("Content-Length: " + strconv.Itoa(len(body)) + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return b.Bytes()
}

// HTTP1 sends a request as it is over a new connection and reads the answer, failing the test when there is none.
func HTTP1(tb testing.TB, addr string, request []byte) Response {
	tb.Helper()
	response, err := SendHTTP1(addr, request)
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	return response
}

// SendHTTP1 is HTTP1 for callers without a test, and for requests that may well be refused without an answer.
func SendHTTP1(addr string, request []byte) (Response, error) {
	conn, err := dial(addr)
	if err != nil {
		return Response{}, err
	}
	defer conn.Close()
	if _, err := conn.Write(request); err != nil {
		return Response{}, fmt.Errorf("send request: %w", err)
	}
	method, _, _ := strings.Cut(string(request), " ") // An answer to HEAD has no body.
	answer, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return Response{}, fmt.Errorf("read answer: %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return Response{}, fmt.Errorf("read answer: %w", err)
	}
	return Response{Status: answer.StatusCode, Header: answer.Header, Body: body}, nil
}

// HTTP2 sends one request without a body over a new cleartext HTTP/2 connection and reads the answer, failing the
// test when there is none. Values may hold any bytes, those of :path included, which net/http would not send.
func HTTP2(tb testing.TB, addr, method, path string, headers ...string) Response {
	tb.Helper()
	response, err := SendHTTP2(addr, method, path, headers...)
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	return response
}

// SendHTTP2 is HTTP2 for callers without a test, and for requests that may well be refused without an answer.
func SendHTTP2(addr, method, path string, headers ...string) (Response, error) {
	conn, err := dial(addr)
	if err != nil {
		return Response{}, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return Response{}, fmt.Errorf("send preface: %w", err)
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	// With windows this large no answer of a test ever waits for a WINDOW_UPDATE.
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 24}); err != nil {
		return Response{}, fmt.Errorf("send settings: %w", err)
	}
	fields := append([]string{
		":method", method, ":scheme", "http", ":authority", "northstar.example.com", ":path", path,
	}, headers...)
	if err := writeHeaders(framer, fields); err != nil {
		return Response{}, fmt.Errorf("send request: %w", err)
	}
	response, err := readStream(framer)
	if err != nil {
		return Response{}, fmt.Errorf("read answer: %w", err)
	}
	return response, nil
}

// maxFrame is the largest payload that every HTTP/2 peer takes; longer header blocks go on in CONTINUATION frames.
const maxFrame = 16384

func writeHeaders(framer *http2.Framer, fields []string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i+1 < len(fields); i += 2 {
		// HTTP/2 has lower-case names only; a test about others writes frames itself.
		field := hpack.HeaderField{Name: strings.ToLower(fields[i]), Value: fields[i+1]}
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	first := block.Next(maxFrame)
	err := framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: first, EndStream: true, EndHeaders: block.Len() == 0,
	})
	for err == nil && block.Len() > 0 {
		next := block.Next(maxFrame)
		err = framer.WriteContinuation(1, block.Len() == 0, next)
	}
	return err
}

func readStream(framer *http2.Framer) (Response, error) {
	response := Response{Header: http.Header{}}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return Response{}, err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				if err := framer.WriteSettingsAck(); err != nil {
					return Response{}, err
				}
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if field.Name == ":status" {
					if response.Status, err = strconv.Atoi(field.Value); err != nil {
						return Response{}, err
					}
				} else {
					response.Header.Add(field.Name, field.Value)
				}
			}
			if f.StreamEnded() {
				return response, nil
			}
		case *http2.DataFrame:
			response.Body = append(response.Body, f.Data()...)
			if f.StreamEnded() {
				return response, nil
			}
		case *http2.RSTStreamFrame:
			return Response{}, fmt.Errorf("stream reset: %v", f.ErrCode)
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return Response{}, fmt.Errorf("connection closed: %v", f.ErrCode)
			}
		}
	}
}

func dial(addr string) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	conn, err := net.DialTimeout(network, addr, requestLimit)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(requestLimit)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
