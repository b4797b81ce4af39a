// Containers, algorithms, strings and streams of the C++ library.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

int main()
{
	std::mt19937_64 random(7);
	std::vector<uint64_t> values(20000);
	std::generate(values.begin(), values.end(), std::ref(random));
	std::sort(values.begin(), values.end());
	std::map<int, std::string> names;
	std::unordered_map<std::string, int> counts;
	for (uint64_t value : values) {
		std::ostringstream text;
		text << std::hex << value % 977;
		names[value % 101] += text.str();
		counts[text.str()]++;
	}
	uint64_t digest = 0;
	for (auto &[key, text] : names)
		digest = digest * 31 + text.size() + key;
	std::set<std::pair<int, std::string>> order;
	for (auto &[text, count] : counts)
		order.emplace(count, text);
	std::cout << digest << ' ' << order.rbegin()->first << ' ' << order.rbegin()->second << '\n';
	std::normal_distribution<double> normal(3, 2);
	double sum = 0;
	for (int i = 0; i < 1000; i++)
		sum += normal(random);
	std::cout << std::setprecision(17) << sum << ' ' << std::accumulate(values.begin(), values.end(), 0ull) << '\n';
	auto shared = std::make_shared<std::vector<int>>(5, 4);
	std::weak_ptr<std::vector<int>> weak = shared;
	shared.reset();
	std::cout << weak.expired() << std::endl;
	return 0;
}
