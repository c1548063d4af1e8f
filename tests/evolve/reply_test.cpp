#include "evolve/propose/reply.hpp"

#include <gtest/gtest.h>

#include "evolve/propose/chat.hpp"

namespace attune::evolve {
namespace {

std::vector<std::string> events_of(const std::string& body, size_t piece) {
  EventStream stream;
  std::vector<std::string> events;
  const auto each = [&](const std::string& data) { events.push_back(data); };
  for (size_t at = 0; at < body.size(); at += piece) stream.feed(body.substr(at, piece), each);
  stream.finish(each);
  return events;
}

TEST(EventStream, HasTheSameEventsInPiecesOfAnySize) {
  const std::string body =
      ": a comment\n\ndata: one\n\nevent: x\ndata:two\r\ndata: more\r\n\r\nid: 4\n\n\ndata: "
      "last \xc3\xa4";
  const std::vector<std::string> expected = {"one", "two\nmore", "last \xc3\xa4"};
  for (size_t piece = 1; piece <= body.size(); ++piece)
    EXPECT_EQ(events_of(body, piece), expected) << piece;
}

ReplyReader read(const std::string& body, size_t piece = 3) {
  ReplyReader reader;
  for (size_t at = 0; at < body.size(); at += piece) reader.feed(body.substr(at, piece));
  reader.finish();
  return reader;
}

std::string delta(const std::string& text) {
  return "data: {\"choices\":[{\"delta\":{\"content\":" + Json(text).dump() + "}}]}\n\n";
}

TEST(Reply, StreamsAreJoined) {
  const ReplyReader r =
      read(":\n\n" + delta("int \xc3\xa4") + delta("\n") +
           "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
           "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,"
           "\"cost\":0.25}}\n\ndata: [DONE]\n\n");
  EXPECT_EQ(r.error(), "");
  EXPECT_EQ(r.text(), "int \xc3\xa4\n");
  EXPECT_TRUE(r.complete());
  EXPECT_FALSE(r.cut_off());
  EXPECT_EQ(r.finish_reason(), "stop");
  EXPECT_EQ(r.tokens_in(), 7);
  EXPECT_EQ(r.tokens_out(), 9);
  EXPECT_EQ(r.cost(), 0.25);
}

TEST(Reply, PlainJsonWillDo) {
  const ReplyReader r = read(
      " {\"choices\":[{\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
      "{\"text\":\"b\"}]},\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":-3}}");
  EXPECT_EQ(r.error(), "");
  EXPECT_EQ(r.text(), "ab");
  EXPECT_TRUE(r.complete());
  EXPECT_EQ(r.tokens_in(), 0);
  EXPECT_EQ(r.tokens_out(), -1) << "not said";
}

TEST(Reply, StreamsWithoutTheirEndAreCutOff) {
  EXPECT_TRUE(read(delta("half")).cut_off());
  EXPECT_TRUE(read("data: {\"choi").cut_off());
}

TEST(Reply, NonsenseIsAnErrorWithAReason) {
  for (const auto& [body, complaint] :
       {std::pair{"", "empty"},
        {"<html><body>Welcome</body></html>", "HTML"},
        {"<!DOCTYPE html>", "HTML"},
        {"Error: no such model", "no JSON"},
        {"{\"choices\":", "no JSON"},
        {"{\"choices\":3}", "no \"choices\""},
        {"{\"choices\":[3]}", "no object"},
        {"[1,2]", "no object"},
        {"{\"error\":{\"message\":\"over\\nloaded\"}}", "over loaded"},
        {"{\"error\":\"no\"}", "no"},
        {"data: <html>\n\n", "no JSON"},
        {"data: {\"error\":{\"message\":\"late\"}}\n\n", "late"},
        {"data: [DONE", "no JSON"}}) {
    const ReplyReader r = read(body);
    EXPECT_NE(r.error().find(complaint), std::string::npos) << body << ": " << r.error();
    EXPECT_EQ(r.text(), "");
  }
}

TEST(Chat, EndpointsAreFoundWithAndWithoutTheirVersion) {
  const auto endpoint = [](const std::string& url) {
    std::string found;
    const Status s = endpoint_of(url, &found);
    return s.ok() ? found : "refused: " + s.message;
  };
  EXPECT_EQ(endpoint("http://localhost:8000"), "http://localhost:8000/v1/chat/completions");
  EXPECT_EQ(endpoint("http://localhost:8000/v1/"), "http://localhost:8000/v1/chat/completions");
  EXPECT_EQ(endpoint("https://h/api/v1"), "https://h/api/v1/chat/completions");
  EXPECT_EQ(endpoint("https://h/v1/chat/completions"), "https://h/v1/chat/completions");
  EXPECT_EQ(endpoint("http://[::1]:80"), "http://[::1]:80/v1/chat/completions");
  for (const char* url :
       {"", "localhost:8000", "ftp://h", "file:///etc/passwd", "http://", "http://user:pass@h/v1",
        "https://h/v1?key=x", "http://h /v1", "http://h#x"})
    EXPECT_TRUE(endpoint(url).starts_with("refused: ")) << url;
}

TEST(Chat, OriginsAreComparedWhole) {
  EXPECT_TRUE(same_origin("https://h/a", "https://H:443/b"));
  EXPECT_FALSE(same_origin("https://h/a", "http://h/a"));
  EXPECT_FALSE(same_origin("https://h/a", "https://h.evil/a"));
  EXPECT_FALSE(same_origin("http://h:80", "http://h:81"));
  EXPECT_TRUE(is_loopback("http://127.0.0.1:3") && is_loopback("http://[::1]/"));
  EXPECT_FALSE(is_loopback("http://localhost.evil"));
}

TEST(Chat, KeysAreRedacted) {
  EXPECT_EQ(redacted("a sk-12345 b sk-12345", "sk-12345"), "a [key] b [key]");
  EXPECT_EQ(redacted("nothing", ""), "nothing");
}

}  // namespace
}  // namespace attune::evolve
