// Just enough JSON to read the vectors: numbers, strings, booleans, null, arrays and objects.
#pragma once
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Json {
  enum Kind { Null, Bool, Number, String, Array, Object } kind = Null;
  double number = 0;
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> members;

  bool has(const std::string& key) const { return members.count(key) > 0; }
  const Json& operator[](const std::string& key) const { return members.at(key); }
  const Json& operator[](size_t i) const { return items.at(i); }
  size_t size() const { return items.size(); }
  bool empty() const { return kind == Null || (kind == Number && number == 0); }
};

class JsonReader {
 public:
  explicit JsonReader(std::string given) : text_(std::move(given)) {}

  Json read() {
    Json value = any();
    space();
    if (at_ != text_.size()) fail("text after the end");
    return value;
  }

 private:
  std::string text_;
  size_t at_ = 0;

  [[noreturn]] void fail(const std::string& rule) const {
    throw std::runtime_error(rule + " at byte " + std::to_string(at_));
  }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool next(char c) {
    space();
    if (at_ < text_.size() && text_[at_] == c) return ++at_, true;
    return false;
  }
  void need(char c) {
    if (!next(c)) fail(std::string("expected ") + c);
  }
  bool word(const char* name) {
    std::string wanted(name);
    if (text_.compare(at_, wanted.size(), wanted) != 0) return false;
    at_ += wanted.size();
    return true;
  }

  Json any() {
    Json out;
    space();
    if (at_ >= text_.size()) fail("text ends early");
    if (next('{')) {
      out.kind = Json::Object;
      if (next('}')) return out;
      do {
        space();
        std::string key = string();
        need(':');
        out.members[key] = any();
      } while (next(','));
      need('}');
    } else if (next('[')) {
      out.kind = Json::Array;
      if (next(']')) return out;
      do out.items.push_back(any());
      while (next(','));
      need(']');
    } else if (text_[at_] == '"') {
      out.kind = Json::String;
      out.text = string();
    } else if (word("true")) {
      out.kind = Json::Bool;
      out.number = 1;
    } else if (word("false")) {
      out.kind = Json::Bool;
    } else if (!word("null")) {
      char* end = nullptr;
      out.kind = Json::Number;
      out.number = std::strtod(text_.c_str() + at_, &end);
      if (end == text_.c_str() + at_) fail("expected a value");
      at_ = static_cast<size_t>(end - text_.c_str());
    }
    return out;
  }

  // escapes are kept as they stand: no key or number has one
  std::string string() {
    need('"');
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') out += text_[at_++];
      if (at_ < text_.size()) out += text_[at_++];
    }
    need('"');
    return out;
  }
};

inline Json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  return JsonReader(text.str()).read();
}
